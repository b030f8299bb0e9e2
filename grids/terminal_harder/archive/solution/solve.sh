#!/bin/bash
set -e
tar xzf box.tar.gz
cd box
sha256sum -c SHA256SUMS 2>/dev/null | awk -F: '/FAILED/ {print $1}' | sort >../bad.txt
