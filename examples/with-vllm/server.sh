#!/usr/bin/env bash
# One machine with four GPUs: two generate, two train. What follows are options of `multiors train`.
#
#   bash examples/with-vllm/server.sh --max-steps 500
set -euo pipefail
cd "$(dirname "$0")/../.."

CUDA_VISIBLE_DEVICES=2,3 trl vllm-serve \
  --model Qwen/Qwen3-4B --tensor-parallel-size 2 --max-model-len 8192 --port 8000 &
server=$!
trap 'kill "$server" 2> /dev/null || true' EXIT

CUDA_VISIBLE_DEVICES=0,1 accelerate launch \
  --config_file examples/accelerate/deepspeed_zero2.yaml --num_processes 2 \
  -m multiors train examples/with-vllm/server.yaml "$@"
