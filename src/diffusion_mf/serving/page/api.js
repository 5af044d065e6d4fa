// Requests to the server that the page came from.

const TOKEN_KEY = "diffusion-mf-token";

/** An answer other than the one that was asked for; the message is the server's sentence. */
export class ApiError extends Error {
  constructor(status, sentence) {
    super(sentence);
    this.status = status;
  }
}

/** Ask for the token in a dialog, once for all requests that wait for it. */
let asking = null;
function askForToken() {
  asking ??= new Promise((resolve) => {
    const dialog = document.getElementById("token-dialog");
    dialog.addEventListener(
      "close",
      () => {
        asking = null;
        sessionStorage.setItem(TOKEN_KEY, document.getElementById("token").value.trim());
        resolve();
      },
      { once: true },
    );
    dialog.showModal();
  });
  return asking;
}

async function send(path, options) {
  for (;;) {
    const headers = { ...options.headers };
    const token = sessionStorage.getItem(TOKEN_KEY);
    if (token) headers.Authorization = `Bearer ${token}`;
    let response;
    try {
      response = await fetch(path, { ...options, headers, credentials: "omit" });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new ApiError(0, "The server does not answer; check that it is running.");
    }
    if (response.ok) return response;
    if (response.status === 401) {
      sessionStorage.removeItem(TOKEN_KEY);
      document.getElementById("token-wrong").hidden = !token;
      await askForToken();
      continue;
    }
    const answer = await response.json().catch(() => ({}));
    throw new ApiError(response.status, answer.error ?? `The server answers with status ${response.status}.`);
  }
}

const json = (body) => ({
  method: "POST",
  headers: { "Content-Type": "application/json" },
  body: JSON.stringify(body),
});

export async function listModels() {
  return (await (await send("models", {})).json()).models;
}

export async function tag(body, signal) {
  return (await send("tag", { ...json(body), signal })).json();
}

/** The sentences of a file, read by the server. */
export async function readFile(file, model, format) {
  const query = new URLSearchParams({ model, name: file.name });
  if (format) query.set("format", format);
  const headers = { "Content-Type": "application/octet-stream" };
  return (await send(`read?${query}`, { method: "POST", headers, body: file })).json();
}

/** Labelled sentences as a file: its name and contents. */
export async function writeFile(body) {
  const response = await send("write", json(body));
  const name = /filename="([^"]+)"/.exec(response.headers.get("Content-Disposition"))?.[1];
  return { name: name ?? "labelled.txt", contents: await response.blob() };
}
