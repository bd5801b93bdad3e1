#!/bin/bash
# A Ray cluster for one training, on four nodes of Slurm with eight GPUs each: sbatch slurm.sh
# params.yaml: runtime.shards: {engine: ray, count: 32, ranks: 1, resources: {cpu: 4, gpu: 1}, address: auto, ray_init: {}}
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=32
#SBATCH --gpus-per-node=8
#SBATCH --signal=B:TERM@120
set -euo pipefail

port=6379
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
RAY_AUTH_MODE=token
RAY_AUTH_TOKEN=$(head -c 32 /dev/urandom | xxd -p -c 64)  # whoever has it may run code on these nodes
export RAY_AUTH_MODE RAY_AUTH_TOKEN RAY_USAGE_STATS_ENABLED=0
each=(--num-cpus "$SLURM_CPUS_PER_TASK" --num-gpus 8 --block)

srun --nodes=1 --ntasks=1 --overlap -w "$head" ray start --head --port "$port" --include-dashboard=false "${each[@]}" &
sleep 20
srun --nodes=$((SLURM_NNODES - 1)) --ntasks=$((SLURM_NNODES - 1)) --overlap --exclude="$head" \
  ray start --address "$head:$port" "${each[@]}" &
sleep 20

# The command of the pipeline, as anywhere else. Two minutes before the job's time is up it saves, and exits with 143;
# the same job, submitted again, goes on from there.
srun --nodes=1 --ntasks=1 --overlap -w "$head" dvc repro &
training=$!
trap 'kill -TERM $training' TERM
wait "$training" || wait "$training"
