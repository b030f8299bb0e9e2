#!/bin/bash
set -e
cd files
for file in ./*.txt; do mv -- "$file" "${file%.txt}.md"; done
