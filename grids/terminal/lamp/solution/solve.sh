#!/bin/bash
a
n
b
