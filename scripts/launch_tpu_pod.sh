#!/usr/bin/env bash
# Trains on all hosts of a Cloud TPU slice, one process each:
#
#   scripts/launch_tpu_pod.sh NAME ZONE --config=configs/csrs.py:qwen2_5_vl_7b --workdir=/shared/runs/a
#
# On every host this repository has to be in the folder DIRECTORY (default: jaxevolve, in the home
# folder), installed with the extra `tpu` for the interpreter PYTHON (default: python, and it may be
# relative to that folder). The work directory, the model and the data have to be on a file system
# that all hosts share. The same command goes on with a run that was interrupted.
set -euo pipefail

if (($# < 3)); then
  echo "usage: ${0##*/} NAME ZONE --config=FILE[:SCALE] --workdir=DIR [more flags of train]" >&2
  exit 2
fi
name=$1 zone=$2
shift 2

# The words pass through one more shell on each host.
printf -v words '%q ' "${PYTHON:-python}" -m jaxevolve.train --distributed "$@"
printf -v folder '%q' "${DIRECTORY:-jaxevolve}"
exec gcloud compute tpus tpu-vm ssh "$name" --zone="$zone" --worker=all \
  --command="cd $folder && exec $words"
