# evopipe in a container, made of wheels alone: building it fetches nothing but the base image, which may be there already.
#
#   python -m pip download -d wheels -c constraints.txt dist/evopipe-*.whl "evopipe[pipeline,mlflow]"
#   docker build --network=none -t evopipe .
#   docker run --rm -v "$PWD:/project" -u "$(id -u):$(id -g)" evopipe train
#
# The wheel of a platform brings kernels, so that no compiler is needed.
ARG BASE=python:3.12-slim
FROM ${BASE}

RUN --mount=type=bind,source=wheels,target=/wheels \
    python -m pip install --no-cache-dir --no-index --find-links /wheels "evopipe[pipeline,mlflow]"

RUN useradd --create-home --uid 10001 evopipe && install -d -o evopipe -g evopipe /project
USER evopipe
# Whatever user `-u` names: compiled kernels and settings lie where that one may write.
ENV HOME=/home/evopipe XDG_CACHE_HOME=/tmp/cache DVC_NO_ANALYTICS=1
WORKDIR /project

ENTRYPOINT ["evopipe"]
CMD ["--help"]
