#!/usr/bin/env bash
# Trains on TPU slices of a GKE cluster that xpk manages, one process a host:
#
#   CLUSTER=mine TPU=v5p-32 IMAGE=gcr.io/project/jaxevolve \
#     scripts/launch_xpk.sh NAME --config=configs/csrs.py:qwen2_5_vl_7b --workdir=/shared/runs/a
#
# The image has this repository, installed with the extra `tpu`, as its working folder. The work
# directory, the model and the data are on a storage that `xpk storage attach` has given the cluster.
# SLICES is 1 by default; RESTARTS, 3 by default, is how often a run that lost a host goes on.
set -euo pipefail

if (($# < 2)); then
  echo "usage: CLUSTER=.. TPU=.. IMAGE=.. ${0##*/} NAME --config=FILE[:SCALE] --workdir=DIR ..." >&2
  exit 2
fi
name=$1
shift

printf -v words '%q ' python -m jaxevolve.train --distributed "$@"
exec xpk workload create \
  --cluster="${CLUSTER:?is the name of the cluster}" \
  --workload="$name" \
  --tpu-type="${TPU:?is the type of a slice, such as v5p-32}" \
  --num-slices="${SLICES:-1}" \
  --docker-image="${IMAGE:?is the image to run}" \
  --max-restarts="${RESTARTS:-3}" \
  --command="$words"
