#!/bin/bash
set -e
base64 -d wrapped | gunzip | base64 -d | base64 -d | gunzip >plain.txt
