# Sourced by test and check-all: goes to the root of the project, puts .venv first, and prints where a run is.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PATH="$PWD/.venv/bin:$PATH"

# step <title> <command...>: says what begins, and how long it took.
step() {
  local title=$1 begin=$SECONDS
  shift
  printf '\n== %s\n' "$title"
  "$@"
  printf -- '-- %s: %d s\n' "$title" $((SECONDS - begin))
}

# run_ctest <preset> [ctest options]
run_ctest() {
  local preset=$1
  shift
  ctest --preset "$preset" --parallel "$(nproc)" "$@"
}

# chosen_isas [slowest] [fastest]: of those this machine has, as a list of CMake's. Needs the build of scripts/test.
chosen_isas() {
  local isas which chosen=()
  mapfile -t isas < <(build/test/tests/list_isas)
  for which in "$@"; do
    if [[ $which == slowest ]]; then chosen+=("${isas[0]}"); else chosen+=("${isas[-1]}"); fi
  done
  printf '%s\n' "${chosen[@]}" | uniq | paste -sd ';'
}

# other_isas: an expression for all of them but the fastest.
other_isas() {
  local others
  others=$(build/test/tests/list_isas | sed '$d' | paste -sd '|')
  printf '(%s)' "${others:-none}"
}

# whole_calls_elsewhere: the names of ctest's whole calls and random tests on all ISAs but the fastest, and of all masks over MPI.
whole_calls_elsewhere() { printf '^((attention|context_parallel|plan|quant|[a-z_]+_property)[.]%s|mpi_gallery_.*)$' "$(other_isas)"; }
