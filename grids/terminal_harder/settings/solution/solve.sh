#!/bin/bash
set -e
env | grep ^SHOP_ | sort >settings
