"""Other implementations of attention on CPUs, one file each, for bench/compare_peers.py."""
