"""moto's S3 over HTTP: the arguments are those of `moto.server`.

If two clients create one object at once, moto lets both succeed when the second checks for the
object before the first has made it. So the interpreter does not switch threads between the two.
"""

import sys

from moto.server import main

sys.setswitchinterval(60)
main()
