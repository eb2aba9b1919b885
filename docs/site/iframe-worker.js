// The search of the site runs in a worker. Browsers start none for a page that is read from a disk: there a hidden frame
// does its work. The theme looks for this name; its own copy of it would be loaded from the internet.
class IFrameWorker extends EventTarget {
  constructor(url) {
    super();
    this.frame = document.createElement("iframe");
    this.frame.hidden = true;
    document.body.append(this.frame);
    const inner = this.frame.contentDocument;
    inner.open();
    inner.write(`<body><script>
      postMessage = (data) => parent.postMessage({ ofWorker: data }, "*");
      importScripts = (...urls) => urls.reduce((before, url) => before.then(() => new Promise((done) => {
        const script = document.createElement("script");
        Object.assign(script, { src: url, onload: done });
        document.body.append(script);
      })), Promise.resolve());
    </script><script src="${url}"></script></body>`);
    inner.close();
    this.loaded = new Promise((done) => { this.frame.contentWindow.onload = done; });
    addEventListener("message", ({ source, data }) => {
      if (source === this.frame.contentWindow) this.dispatchEvent(new MessageEvent("message", { data: data.ofWorker }));
    });
  }

  postMessage(data) {
    this.loaded.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })));
  }

  terminate() {
    this.frame.remove();
  }
}
if (location.protocol === "file:") Object.assign(window, { IFrameWorker, Worker: IFrameWorker });
