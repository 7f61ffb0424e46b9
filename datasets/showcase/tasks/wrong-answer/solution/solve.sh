#!/bin/sh
# Wrong on purpose: goods that a customer returned are in stock again.
set -eu
awk -F, 'NR > 1 { stock[$1] += $2 == "bought" ? $3 : -$3 }
    END {
        for (product in stock)
            line = line sprintf("%s\"%s\": %d", line == "" ? "" : ", ", product, stock[product])
        print "{" line "}"
    }' movements.csv > stock.json
