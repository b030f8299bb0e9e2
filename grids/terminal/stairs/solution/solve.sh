#!/bin/bash
a
b
m
