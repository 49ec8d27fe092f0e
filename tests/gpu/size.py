"""Do a checkout and its wheels fit on a machine with a GPU to which they must travel?

python -m tests.gpu.size wheels
"""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CHECKOUT, WHEELS = 54 << 20, 25 << 18  # bytes, at most: 54 and 6.25 MiB; 64 may travel


def checkout() -> int:
    """Count the bytes of all files that git knows."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    paths = [ROOT / name for name in listed.stdout.split("\0") if name]
    return sum(path.stat().st_size for path in paths if path.is_file())


def main(folder: Path) -> int:
    """Print both sizes; return 1 if one is too large."""
    wheels = sum(path.stat().st_size for path in folder.glob("*.whl"))
    fits = True
    for name, size, most in (("checkout", checkout(), CHECKOUT), ("wheels", wheels, WHEELS)):
        print(f"{name}: {size / 2**20:.2f} MiB of {most / 2**20:.2f}")
        fits = fits and size <= most
    return 0 if fits else 1


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1])))
