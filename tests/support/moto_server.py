"""An S3 that moto plays over HTTP: the arguments are those of `moto.server`.

Of two who create one object at once moto lets both win where the second asks whether it is there
before the first has made it. So no thread is interrupted between the two.
"""

import sys

from moto.server import main

sys.setswitchinterval(60)
main()
