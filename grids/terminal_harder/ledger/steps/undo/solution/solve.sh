#!/bin/bash
head -n 3 book >b; mv b book
