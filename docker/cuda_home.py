"""Lay out NVIDIA's wheels as a CUDA toolkit, for what compiles kernels at run time.

nvcc, its headers and CUDA's libraries come as wheels with torch and SGLang, but not where a linker
looks: `lib` for `lib64`, `libcudart.so.13` without `libcudart.so`, no stub of the driver. Here are
links to them, and a `libcuda.so` that has the names of cuda.h's functions and nothing behind them:
at run time the driver's own libcuda.so.1 is loaded in its place.

    python cuda_home.py /opt/cuda      # then CUDA_HOME=/opt/cuda
"""

import re
import subprocess
import sys
import sysconfig
from pathlib import Path


def lay_out(target: Path, wheels: Path) -> None:
    for name in ("bin", "include", "nvvm"):
        if not (wheels / name).is_dir():
            sys.exit(f"{wheels} has no {name}: expected the wheels that SGLang requires")
    target.mkdir(parents=True)
    for name in ("bin", "include", "nvvm"):
        (target / name).symlink_to(wheels / name)
    libraries = target / "lib64"
    (libraries / "stubs").mkdir(parents=True)
    for library in sorted((wheels / "lib").iterdir()):
        (libraries / library.name).symlink_to(library)
        plain = libraries / f"{library.name.partition('.so')[0]}.so"
        if ".so." in library.name and not plain.exists() and ".alt." not in library.name:
            plain.symlink_to(library.name)
    (target / "lib").symlink_to("lib64")
    make_stub(target / "include" / "cuda.h", libraries / "stubs" / "libcuda.so")


def make_stub(header: Path, stub: Path) -> None:
    # Macros give functions the names of their current versions.
    preprocess = ["cc", "-E", "-P", "-x", "c", header]
    declared = subprocess.run(preprocess, check=True, capture_output=True, text=True).stdout
    names = sorted(set(re.findall(r"\bCUresult\s+(cu\w+)\s*\(", declared)))
    source = "".join(f"int {name}(void) {{ return 999; }}\n" for name in names)
    compile_it = ["cc", "-shared", "-fPIC", "-w", "-Wl,-soname,libcuda.so.1", "-x", "c", "-"]
    subprocess.run([*compile_it, "-o", stub], check=True, input=source.encode())


if __name__ == "__main__":
    lay_out(Path(sys.argv[1]), Path(sysconfig.get_path("platlib")) / "nvidia" / "cu13")
