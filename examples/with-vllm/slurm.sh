#!/usr/bin/env bash
# Three machines with eight GPUs each: the last one generates, the others train with DeepSpeed ZeRO-3.
# What follows are options of `multiors train`; the environments' servers must be reachable from the training machines.
#
#   sbatch examples/with-vllm/slurm.sh --set sources.sort.target=http://environments:8001
#
#SBATCH --job-name=multiors
#SBATCH --nodes=3
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --time=24:00:00
#SBATCH --requeue
#SBATCH --signal=TERM@180
# The last: three minutes before the end, every process is told to stop, and closes its sessions.
set -euo pipefail
cd "${SLURM_SUBMIT_DIR:?run this with sbatch, in the folder that has examples/}"

mapfile -t machines < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
trainers=("${machines[@]:0:${#machines[@]}-1}")
generator=${machines[-1]}

srun --nodes=1 --ntasks=1 --nodelist="$generator" \
  trl vllm-serve --model Qwen/Qwen3-4B --tensor-parallel-size 8 --max-model-len 8192 --port 8000 &
server=$!
trap 'kill "$server" 2> /dev/null || true' EXIT

# Each machine has its own rank, so its variables are for the shell there. A job that was requeued goes on.
export MAIN=${trainers[0]} MACHINES=${#trainers[@]} PROCESSES=$((8 * ${#trainers[@]})) SERVER=http://$generator:8000
# shellcheck disable=SC2016
srun --nodes="${#trainers[@]}" --ntasks="${#trainers[@]}" --nodelist="$(IFS=, && echo "${trainers[*]}")" \
  bash -c 'accelerate launch --config_file examples/accelerate/deepspeed_zero3.yaml \
    --num_machines "$MACHINES" --num_processes "$PROCESSES" --machine_rank "$SLURM_NODEID" \
    --main_process_ip "$MAIN" --main_process_port 29500 --rdzv_backend c10d \
    -m multiors train examples/with-vllm/server.yaml --resume auto \
    --vllm-server-base-url "$SERVER" --gradient-accumulation-steps 1 "$@"' bash "$@"
