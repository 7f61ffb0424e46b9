#!/bin/bash
set -e
value=$(curl -fsS http://store:8080/keys/source)
curl -fsS -X PUT --data "$value" http://store:8080/keys/target
curl -fsS -X DELETE http://store:8080/keys/source
