"""Exit 0 if an address answers 200 in time, else say why and exit 1; standard library only.

python healthcheck.py http://127.0.0.1:30000/health 25
"""

import sys
import urllib.request

try:
    # The image may be started behind a proxy; what is asked here is in the same container.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(sys.argv[1], timeout=float(sys.argv[2])) as answer:
        sys.exit(answer.status != 200)
except OSError as error:
    print(f"{sys.argv[1]}: {error}")
    sys.exit(1)
