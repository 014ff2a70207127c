#!/usr/bin/env bash
# Trains on the GPUs of several SLURM nodes, one process a node:
#
#   sbatch --nodes=2 scripts/launch_slurm.sh --config=configs/csrs.py:qwen2_5_vl_7b --workdir=runs/a
#
# From the folder of this repository, which all nodes share, with its environment active. What is
# said below may be said to sbatch in other words. Five minutes before the time is up the run is
# asked to stop; it saves, and the same command goes on.
#SBATCH --job-name=jaxevolve
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --exclusive
#SBATCH --time=24:00:00
#SBATCH --signal=TERM@300
#SBATCH --output=%x-%j.log
set -euo pipefail

# A process that ends in an error takes the others with it.
exec srun --kill-on-bad-exit=1 python -m jaxevolve.train --distributed "$@"
