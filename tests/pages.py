"""A reader of pages for the tests."""

from html.parser import HTMLParser


class Page(HTMLParser):
    "Words, tags, what a page would load, where it points; its tags must be balanced."

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.words, self.loads, self.links, self.tags, self.open = [], [], [], [], []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.loads += [v for k, v in attrs if k in ('src', 'srcset', 'data', 'action', 'style')]
        self.links += [v for k, v in attrs if k == 'href']
        assert not [k for k, _ in attrs if k.startswith('on')]
        if tag not in ('meta', 'img'):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1:] not in (['style'], ['script']):
            self.words.append(data)
