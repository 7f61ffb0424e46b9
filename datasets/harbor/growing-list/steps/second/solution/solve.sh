#!/bin/bash
sort -nu /app/numbers.txt /app/more.txt -o /app/numbers.txt
