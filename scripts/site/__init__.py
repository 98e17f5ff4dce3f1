"""The documentation site.

python -m scripts.site            build it into build/site/html: `make site`
python -m scripts.site --serve    then serve it on this machine

The pages are those of the repository, at their places: README.md, docs/, and the READMEs of other folders. `pages`
collects them, `markdown` makes of GitHub's Markdown what MkDocs reads, and `hooks` runs inside MkDocs. What is
generated from the code is in the pages already (`make docs`), except for the texts of errors (`messages`) and the API
of the client (mkdocstrings).
"""
