"""Build what a release consists of, into dist/, and try it; nothing of it is published from here.

python -m scripts.release            build, write the sums, install and commit: `make release`
python -m scripts.release --tag TAG  only check that version, changelog and chart are those of the tag

The workflow of a release runs the same, and then signs and publishes what lies in dist/.
"""
