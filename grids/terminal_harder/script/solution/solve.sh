#!/bin/bash
set -e
cat >fizz.sh <<'END'
#!/bin/bash
for ((i = 1; i <= $1; i++)); do
  word=
  ((i % 3)) || word=fizz
  ((i % 5)) || word=${word}buzz
  echo "${word:-$i}"
done
END
