# needs: torch
# DistributedDataParallel over two instances, of which the first keeps its checkpoints for both.
port=$(python -c 'import socket; s = socket.socket(); s.bind(("", 0)); print(s.getsockname()[1])')
start() { torchrun --nnodes 2 --nproc-per-node 1 --node-rank "$1" --master-addr 127.0.0.1 --master-port "$port" _ddp.py; }
mkdir -p other && cp ./*.py other && cp -r ckpt other
(cd other && DLCLOUD_CHECKPOINTS=${DLCLOUD_CHECKPOINTS:+$PWD/ckpt} start 1) &
start 0 && wait
