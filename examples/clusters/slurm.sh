#!/bin/bash
# Eight nodes, one process on each, with all cards of its node:  sbatch slurm.sh
# train.py is that of docs/howto/train_on_several_processes.md, with own_network=True in
# its start(...), and a folder for ledger and checkpoint that all nodes see.
#SBATCH --job-name=private-run
#SBATCH --nodes=8
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --gres=gpu:8
#SBATCH --mem=200G
#SBATCH --time=24:00:00
#SBATCH --requeue
#SBATCH --open-mode=append

export COORDINATOR="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1):7777"
ulimit -c 0 # demur switches core dumps off too

# The first process that ends badly ends the others: they could not go on without it.
srun --kill-on-bad-exit=1 bash -c \
  'exec python train.py "$COORDINATOR" "$SLURM_NTASKS" "$SLURM_PROCID"'
code=$?

# 75: a process was lost. The run is paid; started again, it goes on from its checkpoint.
if [ "$code" -eq 75 ]; then
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
