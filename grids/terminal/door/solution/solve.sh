#!/bin/bash
n
o
z
