"""The stages, a module each. `run(params, quiet, folder)` reads the outs of earlier stages below a folder, and writes
its own.

What differs between environments and language models is in `problems`.

Raises:
    MissingInputError, DataError: an out of an earlier stage, or what a parameter names, is missing, damaged, or belongs
        to something else.
    ParamsError: a parameter cannot be used.
    EnvironmentFailed: an environment breaks its contract.
    ResourceError: memory ran out.
    DiskError: a file cannot be written.
    Interrupted: a signal arrived.
    BusyError, DivergedError: in training only.
"""
