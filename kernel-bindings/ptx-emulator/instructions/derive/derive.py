"""Writes the instruction files of the folder above: `python3 instructions/derive/derive.py`.

Every expected value comes from this folder's own exact arithmetic or from pseudo-code of the PTX ISA, never from the
emulator. The files are committed; nothing runs this at build or test time. `--ptxas PATH` also assembles every file
for its target.
"""

import os
import subprocess
import sys

import asynchronous
import conversions
import files
import floats
import integers
import matrices
import memory
import warps

FAMILIES = [integers, floats, conversions, memory, warps, asynchronous, matrices]


def main():
    for family in FAMILIES:
        family.run()
    known = {name + ".ptx" for name in files.WRITTEN}
    for name in os.listdir(files.ROOT):
        if name.endswith(".ptx") and name not in known:
            os.remove(os.path.join(files.ROOT, name))
    print(f"{len(known)} files")
    if "--ptxas" in sys.argv:
        ptxas = sys.argv[sys.argv.index("--ptxas") + 1]
        failed = 0
        for name in sorted(known):
            path = os.path.join(files.ROOT, name)
            text = open(path).read()
            target = next(line.split()[1] for line in text.splitlines() if line.startswith(".target"))
            result = subprocess.run([ptxas, f"-arch={target}", "-o", os.devnull, path], capture_output=True, text=True)
            if result.returncode != 0:
                failed += 1
                print(name, result.stderr.strip().splitlines()[:2])
        print(f"{failed} refused by ptxas")
        sys.exit(failed != 0)


main()
