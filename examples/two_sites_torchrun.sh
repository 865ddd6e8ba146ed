#!/bin/sh
# Two sites of one run on this machine: west with 2 ranks (FSDP2, bf16 autocast, 12 sequences a step), east with one
# process (fp32, 4 sequences). On two machines, run `init` once, copy the directory without owner.key and without the
# other site's folder, write each other's address into roster.toml and `listen`, and start each site by its command.
#
#     examples/two_sites_torchrun.sh runs/two-sites
set -eu
run=$1 tokens=${2:-400000}

isthmus init "$run" --islands west,east --preset micro --tokens "$tokens"
sed -i 's/^window_steps = .*/window_steps = 12/' "$run/run.toml"
sed -i 's/^evaluate_bytes = .*/evaluate_bytes = 20000/' "$run/run.toml"
isthmus roster sign "$run"
sed -i 's/^batch_size = .*/batch_size = 12/; s/^precision = .*/precision = "bf16-autocast"/' "$run/islands/west/island.toml"
sed -i 's/^fsdp = .*/fsdp = 2/' "$run/islands/west/island.toml"
sed -i 's/^batch_size = .*/batch_size = 4/; s/^precision = .*/precision = "fp32"/' "$run/islands/east/island.toml"
export OMP_NUM_THREADS=1

# at the first site
torchrun --standalone --nproc-per-node=2 -m isthmus train "$run" --island west &
west=$!

# at the second site
isthmus train "$run" --island east

wait $west
