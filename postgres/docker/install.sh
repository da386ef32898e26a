#!/bin/sh
# Builds the extension and installs it below a folder: install.sh SOURCE PG_CONFIG FOLDER
set -eu
make -C "$1" PG_CONFIG="$2"
make -C "$1" PG_CONFIG="$2" DESTDIR="$3" install
