#!/bin/sh
# Prints the name of the lock that `make install` installs, cpu or cuda, and says on stderr which and why.
# An argument (`make install LOCK=cpu`) decides instead. Numbers: shared/gpus/usable.py.
set -u
LEAST_DRIVER=580
LEAST_CAPABILITY=8.0

choose() {
    echo "locks/$1.lock suits this machine: $2" >&2
    echo "$1"
    exit 0
}

case "${1:-}" in
    "") ;;
    cpu | cuda) echo "locks/$1.lock: LOCK=$1 says so" >&2; echo "$1"; exit 0 ;;
    *) echo "LOCK is $1; use cpu or cuda, or leave it out." >&2; exit 2 ;;
esac

PATH="$PATH:/usr/lib/wsl/lib" # where Windows puts the driver's program (WSL2)
gpus=$(nvidia-smi --query-gpu=driver_version,compute_cap,name --format=csv,noheader 2>/dev/null) ||
    choose cpu "no NVIDIA driver answers"
test -n "$gpus" || choose cpu "the NVIDIA driver shows no GPU"
test "$(uname -m)" = x86_64 || choose cpu "cuda.lock is made for x86_64, and this machine is $(uname -m)"

# The newest GPU decides: driver, then capability.
best=$(printf '%s\n' "$gpus" | sort -t, -k2 -rn | head -n 1)
driver=${best%%,*}
rest=${best#*, }
capability=${rest%%,*}
name=${rest#*, }
test "${driver%%.*}" -ge "$LEAST_DRIVER" ||
    choose cpu "$name has driver $driver, and torch for CUDA needs $LEAST_DRIVER or newer. Update the driver and install again to use the GPU."
awk "BEGIN { exit !($capability >= $LEAST_CAPABILITY) }" ||
    choose cpu "$name has compute capability $capability; adapters are trained on GPUs of $LEAST_CAPABILITY or newer"
choose cuda "$name has driver $driver"
