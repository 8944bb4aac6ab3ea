"""Links between the pages of the documentation's site: every file and every anchor that one leads to is there.

In:  the folder that `make docs` wrote. Out: exit status 1 and a line for each dead link. Links to other sites are not
     followed: `sphinx -b linkcheck` does that.

    python tools/check_links.py build/docs
"""

import re
import sys
from pathlib import Path
from urllib.parse import unquote

LINK, TARGET = re.compile(r'(?:href|src)="([^"]+)"'), re.compile(r'(?:id|name)="([^"]+)"')
ELSEWHERE = re.compile(r"[a-z]+:")


def dead_links(folder: Path) -> list[str]:
    """`page: link` for each link that leads nowhere."""
    pages = {path.resolve(): path.read_text() for path in folder.rglob("*.html")}
    targets = {path: set(TARGET.findall(text)) for path, text in pages.items()}
    dead = []
    for page, text in pages.items():
        for link in LINK.findall(text):
            if ELSEWHERE.match(link):
                continue
            name, _, anchor = unquote(link).partition("#")
            there = (page.parent / name.partition("?")[0]).resolve() if name else page
            if not there.exists() or (anchor and there in targets and anchor not in targets[there]):
                dead.append(f"{page.relative_to(folder.resolve())}: {link}")
    return dead


if __name__ == "__main__":
    found = dead_links(Path(sys.argv[1]))
    print("\n".join(found) or "every link leads somewhere")
    sys.exit(bool(found))
