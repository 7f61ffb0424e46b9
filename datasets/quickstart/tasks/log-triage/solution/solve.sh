#!/bin/sh
# Runs in the box; the working directory is the workspace.
set -eu
{
    gzip -dc logs/access.log.2.gz logs/access.log.1.gz
    cat logs/access.log
} | awk '
    { requests++ }
    $4 == "POST" && $5 == "/login" && $6 == 401 { failed[$3]++ }
    $6 >= 500 { broken[$5]++ }
    $5 ~ /^\/account\// && $6 == 200 { seen[$3] = $5 }
    $4 == "GET" && $5 == "/search" {
        for (place = 3; place > 0 && $7 > duration[place]; place--) {
            duration[place + 1] = duration[place]
            id[place + 1] = id[place]
            duration[place] = $7
            id[place] = $1
        }
    }
    function most(counts,   key, best) {
        for (key in counts)
            if (best == "" || counts[key] > counts[best])
                best = key
        return best
    }
    END {
        attacker = most(failed)
        printf "{\"requests\": %d, \"attacker\": \"%s\", ", requests, attacker
        printf "\"failed_logins\": %d, ", failed[attacker]
        printf "\"broken_in\": \"%s\", \"worst_path\": \"%s\", ", seen[attacker], most(broken)
        printf "\"slowest_ms\": {\"%s\": %d, ", id[1], duration[1]
        printf "\"%s\": %d, \"%s\": %d}}\n", id[2], duration[2], id[3], duration[3]
    }' > answer.json
