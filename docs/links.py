"""python docs/links.py SITE: every link and anchor of the built pages leads somewhere within SITE,
and no page fetches anything from another host."""

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

FETCHED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}


class Page(HTMLParser):
    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors, self.links = {"", "top"}, []  # links: address, whether it is fetched
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag in FETCHED and FETCHED[tag] in given:
            self.links.append((given[FETCHED[tag]], True))
        elif tag == "a" and "href" in given:
            self.links.append((given["href"], False))


def problems(site: Path) -> list[str]:
    """What is wrong, one line each."""
    pages = {path.resolve(): Page(path) for path in sorted(site.rglob("*.html"))}
    found = [] if pages else [f"{site}: no pages"]
    for path, page in pages.items():
        for link, fetched in page.links:
            address = urlsplit(link)
            if address.scheme == "data" or (address.scheme and not fetched):
                continue
            if address.scheme or address.netloc:
                found.append(f"{path}: fetches {link}")
                continue
            target = (path.parent / unquote(address.path)).resolve() if address.path else path
            if not target.is_file():
                found.append(f"{path}: {link} is not there")
            elif target in pages and unquote(address.fragment) not in pages[target].anchors:
                found.append(f"{path}: {link} has no such heading")
    for path in sorted(site.rglob("*.css")):
        for link in re.findall(r"(?:url\(|@import)\s*[\"']?(https?:)?//", path.read_text("utf-8")):
            found.append(f"{path}: fetches from another host ({link})")
    return found


if __name__ == "__main__":
    if wrong := problems(Path(sys.argv[1])):
        sys.exit("\n".join(wrong))
