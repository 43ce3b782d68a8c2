"""Print the requirements of some extras of pyproject.toml, one a line.

An image installs them before HiQCache's own code is copied, so that a changed line of code
does not install 11 GB again.

    python requirements.py pyproject.toml sglang demo
"""

import sys
import tomllib
from pathlib import Path

project = tomllib.loads(Path(sys.argv[1]).read_text("utf-8"))["project"]
for extra in sys.argv[2:]:
    print(*project["optional-dependencies"][extra], sep="\n")
