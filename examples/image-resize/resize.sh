#!/bin/sh
# Makes a picture smaller: a handler in plain shell.
#
#   windlass worker --exec resize_image=./resize.sh --concurrency 2 --memory-limit 512MB
#   windlass enqueue resize_image --parameters '{"image": "photo.ppm", "width": 320}' --wait
#
# The parameters come on stdin as JSON, the result goes to stdout. The exit code says how it went: 0 done, 75 try again
# later, 65 no retry will help. Whatever is written to stderr is kept as the error.
set -eu

parameters=$(cat)
image=$(printf '%s' "$parameters" | jq -er .image) || { echo "no image is named" >&2; exit 65; }
width=$(printf '%s' "$parameters" | jq -er '.width // 320')

[ -e "$image" ] || { echo "there is no file $image (attempt $WINDLASS_ATTEMPT)" >&2; exit 65; }
# Still being uploaded: not our fault, and not for ever.
[ -s "$image" ] || { echo "$image is empty; perhaps it is still being written" >&2; exit 75; }

thumbnail="${image%.*}-$width.${image##*.}"
# Under another name first: whoever sees the thumbnail sees all of it, and a second attempt does no harm.
if [ "$(head -c 2 "$image")" != P3 ]; then
    # ImageMagick knows every format there is.
    convert "$image" -resize "${width}x" "$thumbnail.part"
else
    # A plain text picture (PPM, P3) needs no tool: every pixel that survives the smaller width.
    awk -v wanted="$width" '
        { sub(/#.*/, ""); for (i = 1; i <= NF; i++) token[count++] = $i }
        END {
            width = token[1]; height = token[2]
            step = width / wanted; if (step < 1) step = 1
            columns = int(width / step); rows = int(height / step); if (rows < 1) rows = 1
            printf "P3\n%d %d\n%d\n", columns, rows, token[3]
            for (y = 0; y < rows; y++) for (x = 0; x < columns; x++) {
                at = 4 + 3 * (int(y * step) * width + int(x * step))
                print token[at], token[at + 1], token[at + 2]
            }
        }' "$image" >"$thumbnail.part"
fi
mv "$thumbnail.part" "$thumbnail"
jq -n --arg thumbnail "$thumbnail" --argjson bytes "$(wc -c <"$thumbnail")" '{thumbnail: $thumbnail, bytes: $bytes}'
