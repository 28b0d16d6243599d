// An address without a page.
import { begin, content } from "/static/frame.js";
import { el, fill } from "/static/dom.js";

begin(() => fill(content, el("p", {}, "The console has no page at this address. Choose one above.")));
