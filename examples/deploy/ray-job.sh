#!/usr/bin/env bash
# Submit an evaluation to a Ray cluster that is up already; its driver runs on the cluster, so this machine may leave.
#   RAY_API=http://head:8265 DATASET=hub:QiyaoMa/Personalized-RewardBench OUT=/shared/runs/skywork ./ray-job.sh
# Submitting the same command again resumes the run: OUT must be on a disk that all possible drivers see.
set -euo pipefail

: "${RAY_API:=http://127.0.0.1:8265}"
: "${DATASET:=mirror}"
: "${MODEL:=classifier?path=Skywork/Skywork-Reward-V2-Qwen3-0.6B}"
: "${OUT:=/shared/runs/$(date +%F)}"
: "${ACTORS:=8}"
: "${GPUS:=1}"

ray job submit --address "$RAY_API" --no-wait -- \
  prb evaluate --model "$MODEL" --dataset "$DATASET" --engine "ray?actors=$ACTORS&gpus=$GPUS" --out "$OUT" --quiet
