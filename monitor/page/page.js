/* SPDX-License-Identifier: Apache-2.0 */
/*
 * page.js: draws a run's page from run.json (monitor/run_json.h) and keeps it new.
 *
 * All that it reads is untrusted: a number is finite or null, a text is short and has no control or
 * direction marks, lists are cut, and texts enter the page as textContent and as pixels only.
 */
"use strict";
(() => {
const PEERS = 1024, EVENTS = 200, ROWS = 10000, LAYERS = 256, EXPERTS = 1 << 16, TEXT = 400,
    COMMAND = 1500; // an invite is long
const $ = id => document.getElementById(id);

/* ---- untrusted values ---------------------------------------------------------------------- */

const num = v => typeof v === "number" && Number.isFinite(v) ? v : null;
const list = (v, most) => Array.isArray(v) ? v.slice(0, most) : [];
const object = v => v !== null && typeof v === "object" && !Array.isArray(v) ? v : {};
/* Control characters, direction marks, unpaired surrogates and what else has no shape. */
const odd = /[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Cn}\p{Zl}\p{Zp}]/gu;
function text(v, most = 64)
{
    const all = typeof v === "string" ? v.slice(0, 2 * most).replace(odd, "\ufffd") : "";
    return all.length > most ? all.slice(0, most) + "…" : all;
}

/* ---- words and numbers --------------------------------------------------------------------- */

const none = "–";
const whole = new Intl.NumberFormat("en", {maximumFractionDigits: 0});
const compact = new Intl.NumberFormat("en", {notation: "compact", maximumSignificantDigits: 3});
const count = v => num(v) === null ? none : whole.format(v);
const short = v => num(v) === null ? none : Math.abs(v) < 1e6 ? whole.format(v) : compact.format(v);
const rate = v => num(v) === null ? none : v >= 100 ? count(v) : String(+v.toPrecision(3));
const part = (v, digits = 1) => num(v) === null ? none : (100 * v).toFixed(digits) + " %";
const loss = v => num(v) === null ? none : v.toPrecision(4);
const many = (n, what) => `${count(n)} ${what}${n === 1 ? "" : "s"}`;

function span(s)
{
    if (num(s) === null)
        return none;
    for (const [unit, name] of [[86400, "d"], [3600, "h"], [60, "min"]])
        if (s >= 1.5 * unit)
            return `${s >= 10 * unit ? Math.round(s / unit) : +(s / unit).toFixed(1)} ${name}`;
    return `${Math.max(0, Math.round(s))} s`;
}

const pad = n => String(n).padStart(2, "0");
const months = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split(" ");
function when(t, withDay = true, withSeconds = false)
{
    const d = new Date(1000 * (num(t) ?? NaN));
    if (Number.isNaN(d.getTime()))
        return none;
    const clock = `${pad(d.getHours())}:${pad(d.getMinutes())}${withSeconds ? ":" + pad(d.getSeconds()) : ""}`;
    return withDay ? `${d.getDate()} ${months[d.getMonth()]} ${clock}` : clock;
}

/* ---- elements ------------------------------------------------------------------------------ */

function make(tag, content, className)
{
    const e = document.createElement(tag);
    if (content !== undefined)
        e.textContent = content;
    if (className)
        e.className = className;
    return e;
}

function say(id, content)
{
    const e = $(id);
    if (e.textContent !== content)
        e.textContent = content;
}

const style = name => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();

/* ---- head: state and figures --------------------------------------------------------------- */

const states = {
    looking: "looking for peers", training: "training", waiting: "waiting: no step for a minute",
    idle: "idle: no trainer", done: "done",
};

function tile(name, value, small, alarm)
{
    const dd = make("dd", value, alarm ? "alarm" : "");
    if (small)
        dd.append(make("small", small));
    const box = make("div");
    box.append(make("dt", name), dd);
    return box;
}

function testText(test)
{
    if (num(test.accuracy) !== null)
        return `${part(test.accuracy)} right`;
    if (num(test.bits_per_byte) !== null)
        return `${loss(test.bits_per_byte)} bits a byte`;
    return "";
}

function drawHead(run)
{
    const name = text(run.run) || "a run", state = text(run.state), test = object(run.test);
    const step = num(run.step), total = num(run.total), missing = run.places - run.served;
    const done = step !== null && total > 0 ? Math.min(100, 100 * step / total) : null;
    const people = (num(run.trainers) ?? 0) + (num(run.hosts) ?? 0) + (num(run.helpers) ?? 0);
    document.title = `${name} · hearth`;
    say("run", name);
    say("state", states[state] ?? state);
    $("state").classList.toggle("training", state === "training" || state === "done");
    say("since", [num(run.since_at_s) === null ? "" : `training since ${when(run.since_at_s)}`,
        done === null ? "" : `${done.toFixed(1)} % of the schedule`,
        num(run.left_s) > 0 ? `${span(run.left_s)} left` : "",
        text(run.trouble, TEXT)].filter(s => s).join(" · "));
    $("bar").value = done ?? 0;
    $("bar").hidden = done === null;
    $("tiles").replaceChildren(
        tile("step", count(step), num(total) === null ? "" : `of ${count(total)}`),
        tile("loss", loss(run.loss), "of the trainers"),
        tile("test loss", loss(test.loss), [testText(test),
            num(test.step) === null ? "" : `at step ${count(test.step)}`].filter(s => s).join(", ")),
        tile("samples", short(run.samples), "by all trainers"),
        tile("speed", rate(run.samples_per_s), `samples/s; ${rate(run.rows_per_s)} rows/s`),
        tile("participants", count(people), [["trainers", "trainer"], ["hosts", "host"], ["helpers", "helper"]]
            .filter(([field]) => run[field] > 0).map(([field, one]) => many(run[field], one)).join(", ")),
        tile("experts served", num(run.served) === null ? none : `${count(run.served)} of ${count(run.places)}`,
            missing > 0 ? `${count(missing)} missing` : "all of them", missing > 0),
        tile("checkpoint", num(object(run.checkpoint).step) === null ? none : count(run.checkpoint.step),
            num(object(run.checkpoint).t) === null ? "" : when(run.checkpoint.t)));
}

/* ---- how to join --------------------------------------------------------------------------- */

async function copy(button, code)
{
    const all = document.createRange();
    all.selectNodeContents(code);
    getSelection().removeAllRanges();
    getSelection().addRange(all);
    try {
        if (navigator.clipboard) // pages over plain HTTP have none
            await navigator.clipboard.writeText(code.textContent);
        else if (!document.execCommand("copy"))
            throw new Error("refused");
        button.textContent = "Copied";
    } catch {
        button.textContent = "Press Ctrl+C"; // it is selected
    }
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
}

let joinShown = "";
function drawJoin(run)
{
    const join = object(run.join), command = text(join.command, COMMAND), ask = text(join.ask, TEXT);
    $("join-part").hidden = command === "";
    if (command + ask + join.complete === joinShown)
        return;
    joinShown = command + ask + join.complete;
    const row = make("div", undefined, "command"), code = make("code", command);
    const button = make("button", "Copy");
    button.type = "button";
    button.addEventListener("click", () => copy(button, code));
    row.append(make("p", "With hearth and the run's file on your computer, host experts of this run:"), code, button);
    const open = [["FILE", "the run's file"], ["ADDR:PORT", "an address"], ["INVITE", "an invite"]]
        .filter(([word]) => command.split(" ").includes(word)).map(([word, what]) => `${what}, in place of ${word}`);
    if (join.complete !== true)
        row.append(make("p", `Ask ${ask || "the one who runs this page"} for ${open.join(", and for ") || "what is missing"}.`));
    $("join").replaceChildren(row);
}

/* ---- charts -------------------------------------------------------------------------------- */

const charts = {};
let columns = {}, against = "step";

/* Places for about `most` ticks on round local times. */
function timeTicks(low, high, most)
{
    const steps = [60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800,
        1209600, 2592000];
    const step = steps.find(s => (high - low) / s <= most) ?? 7776000;
    const zone = 60 * new Date(1000 * low).getTimezoneOffset(), ticks = [];
    for (let t = Math.ceil((low - zone) / step) * step + zone; t <= high && ticks.length < 100; t += step)
        ticks.push({value: t});
    return ticks;
}

function timeAxis()
{
    return {
        type: "linear", grid: {color: style("grid")}, ticks: {
            color: style("soft"), maxRotation: 0, autoSkipPadding: 12,
            callback(t) { return this.max - this.min > 2 * 86400 ? when(t).replace(/ ..:..$/, "") : when(t, this.max - this.min > 86400); },
        },
        afterBuildTicks(axis) { axis.ticks = timeTicks(axis.min, axis.max, axis.width / 90); },
    };
}

function numberAxis(color, more)
{
    return {
        type: "linear", grid: {color: style("grid")}, title: {display: false, color: style("soft")},
        ticks: {color: style(color), maxTicksLimit: 7, maxRotation: 0, includeBounds: false, callback: short}, ...more,
    };
}

function line(label, color, data, more)
{
    return {
        label, data: thin(data), borderColor: style(color), backgroundColor: style(color), borderWidth: 1.8,
        pointRadius: 0, pointHitRadius: 6, ...more,
    };
}

const timeTitle = of => when(of[0].parsed.x, true, true);

/* Makes a chart, or gives a new set of lines to it. Colours are part of both. */
function chart(id, lines, scales, title)
{
    const xs = lines.flatMap(l => l.data.map(p => p.x));
    if (xs.length > 0) {
        scales.x.min = xs.reduce((a, b) => Math.min(a, b));
        scales.x.max = xs.reduce((a, b) => Math.max(a, b));
    }
    const options = {
        animation: false, maintainAspectRatio: false, normalized: true, parsing: false, spanGaps: false,
        interaction: {mode: "nearest", axis: "x", intersect: false}, scales,
        plugins: {
            legend: {labels: {color: style("ink"), boxWidth: 14, boxHeight: 2}},
            tooltip: {callbacks: {title}},
        },
    };
    if (charts[id] === undefined) {
        charts[id] = new Chart($(id), {type: "line", data: {datasets: lines}, options});
        return;
    }
    charts[id].data.datasets = lines;
    charts[id].options = options;
    charts[id].update();
}

/* A pause of the monitor is a gap in the line. Chart.js counts ticks in steps that vanish beside
 * numbers of too many digits, and never ends: places are whole, heights have seven digits. */
function points(xs, ys, ts)
{
    const out = [], drawable = v => num(v) !== null && Math.abs(v) < 1e13;
    for (let i = 0; i < xs.length; i++) {
        if (!drawable(xs[i]) || !drawable(ys[i]))
            continue;
        if (out.length > 0 && num(ts?.[i - 1]) !== null && ts[i] - ts[i - 1] > 3 * (ts[i - 1] - (ts[i - 2] ?? -Infinity)))
            out.push({x: Math.round(xs[i]), y: NaN});
        out.push({x: Math.round(xs[i]), y: Math.fround(ys[i])});
    }
    return out;
}

/* The lowest and the highest of each of at most 400 stretches in their order; those with a gap whole. */
function thin(all)
{
    const by = Math.ceil(all.length / 400), out = [];
    if (by <= 2)
        return all;
    for (let i = 0; i < all.length; i += by) {
        let low = -1, high = -1, gap = false;
        for (let j = i; j < Math.min(i + by, all.length); j++) {
            gap ||= Number.isNaN(all[j].y);
            if (low < 0 || all[j].y < all[low].y)
                low = j;
            if (high < 0 || all[j].y > all[high].y)
                high = j;
        }
        out.push(...(gap ? all.slice(i, i + by) : low === high ? [all[low]] : [all[Math.min(low, high)], all[Math.max(low, high)]]));
    }
    return out;
}

/* The value of a column at a step, between the rows around it. */
function atStep(step, steps, values)
{
    for (let i = 1; i < steps.length; i++) {
        if (steps[i] >= step && num(values[i]) !== null && num(values[i - 1]) !== null) {
            const of = steps[i] > steps[i - 1] ? (step - steps[i - 1]) / (steps[i] - steps[i - 1]) : 1;
            return values[i - 1] + Math.max(0, of) * (values[i] - values[i - 1]);
        }
    }
    return null;
}

function drawLoss(run)
{
    const h = columns, tests = object(run.tests), column = name => list(tests[name], 1000);
    const steps = column("step"), xs = against === "samples" ? steps.map(s => atStep(num(s) ?? NaN, h.step, h.samples)) : column(against);
    let trained = points(h[against], h.loss, against === "t" ? h.t : undefined);
    if (against !== "t")
        trained = trained.filter((p, i, all) => i === 0 || p.x > all[i - 1].x);
    const y = numberAxis("soft", {grace: "5%"});
    y.ticks.callback = v => +v.toPrecision(3);
    chart("loss", [line("training", "loss", trained), line("test", "test",
        points(xs, column("loss")).sort((a, b) => a.x - b.x), {pointRadius: 3.5, clip: 4})],
        {x: against === "t" ? timeAxis() : numberAxis("soft"), y},
        of => against === "t" ? timeTitle(of) : `${count(of[0].parsed.x)} ${against === "step" ? "steps" : "samples"}`);
    $("loss").setAttribute("aria-label", `Loss against ${{t: "time", step: "steps"}[against] ?? against}: training ` +
        `${loss(h.loss.find(v => num(v) !== null))} at first, ${loss(run.loss)} now; test ${loss(object(run.test).loss)}`);
}

function drawPeople(run)
{
    const h = columns, y = numberAxis("soft", {beginAtZero: true});
    y.ticks.precision = 0;
    chart("people", [line("trainers", "loss", points(h.t, h.trainers, h.t), {stepped: true}),
        line("hosts", "test", points(h.t, h.hosts, h.t), {stepped: true})], {x: timeAxis(), y}, timeTitle);
    $("people").setAttribute("aria-label", `Participants over time: ${count(run.trainers)} trainers and ${count(run.hosts)} hosts now`);
}

function drawRate(run)
{
    const h = columns;
    chart("rate", [line("trainers, samples/s", "loss", points(h.t, h.samples_per_s, h.t)),
        line("hosts, rows/s", "test", points(h.t, h.rows_per_s, h.t), {yAxisID: "rows"})],
        {x: timeAxis(), y: numberAxis("loss", {beginAtZero: true}),
            rows: numberAxis("test", {beginAtZero: true, position: "right", grid: {display: false}})}, timeTitle);
    $("rate").setAttribute("aria-label", `Speed over time: ${rate(run.samples_per_s)} samples/s and ${rate(run.rows_per_s)} rows/s now`);
}

const NAMES = ["t", "step", "samples", "loss", "trainers", "hosts", "served", "samples_per_s", "rows_per_s"];
function takeHistory(run)
{
    const h = object(run.history);
    columns = {};
    for (const name of NAMES)
        columns[name] = list(h[name], ROWS);
}

function takePoint(point)
{
    for (const name of NAMES) {
        columns[name].push(num(object(point)[name]));
        if (columns[name].length > ROWS)
            columns[name].shift();
    }
}

/* ---- coverage ------------------------------------------------------------------------------ */

const GAP = 1;
const grids = []; /* of each layer: canvas, the number in a row, the size of a square */
let shown = {layer: -1, expert: -1};

const shade = n => n === 0 ? "none" : n === 1 ? "one" : n === 2 ? "two" : "many";

/* A square without a host is told by its cross, too: not everybody sees its colour. */
function square(g, n, x, y, size, colors)
{
    g.fillStyle = colors[shade(n)];
    g.fillRect(x, y, size, size);
    if (n === 0 && size >= 6) {
        g.strokeStyle = colors.card;
        g.lineWidth = Math.max(1, size / 10);
        g.beginPath();
        g.moveTo(x + size * .25, y + size * .25);
        g.lineTo(x + size * .75, y + size * .75);
        g.moveTo(x + size * .75, y + size * .25);
        g.lineTo(x + size * .25, y + size * .75);
        g.stroke();
    }
}

function colorsNow()
{
    const colors = {};
    for (const name of ["none", "one", "two", "many", "card", "ink"])
        colors[name] = style(name);
    return colors;
}

function layerAt(run, l)
{
    const layer = object(list(run.layers, LAYERS)[l]);
    return {
        name: text(layer.name), grid: list(layer.grid, 3).map(d => Math.max(1, num(d) ?? 1)),
        replicas: list(layer.replicas, EXPERTS), hosts: list(layer.hosts, EXPERTS),
    };
}

function uid(layer, i)
{
    const at = [];
    for (let d = layer.grid.length - 1; d >= 0; d--) {
        at.unshift(i % layer.grid[d]);
        i = Math.floor(i / layer.grid[d]);
    }
    return `${layer.name}.${at.join(".")}`;
}

/* Draws the square of an expert, with a frame if it is pointed at. */
function mark(grid, i, colors, framed)
{
    const {g, size, pitch} = grid, x = i % grid.wide * pitch, y = Math.floor(i / grid.wide) * pitch;
    square(g, num(grid.layer.replicas[i]) ?? 0, x, y, size, colors);
    if (framed) {
        g.strokeStyle = colors.ink;
        g.lineWidth = 2;
        g.strokeRect(x + 1, y + 1, size - 2, size - 2);
    }
}

function paint(run, l, colors)
{
    const layer = layerAt(run, l), grid = grids[l], n = layer.replicas.length;
    const room = Math.max(120, $("layers").clientWidth), last = layer.grid.at(-1) ?? 1;
    const wide = layer.grid.length > 1 && last * 6 <= room ? last : Math.min(n, Math.floor(room / (n > 2000 ? 8 : 12)));
    const size = Math.max(5, Math.min(20, Math.floor(room / Math.max(1, wide)) - GAP)), dots = devicePixelRatio || 1;
    const rows = Math.max(1, Math.ceil(n / Math.max(1, wide))), pitch = size + GAP;
    Object.assign(grid, {wide: Math.max(1, wide), pitch, count: n});
    grid.canvas.width = Math.ceil(wide * pitch * dots);
    grid.canvas.height = Math.ceil(rows * pitch * dots);
    grid.canvas.style.width = `${wide * pitch}px`;
    grid.canvas.style.height = `${rows * pitch}px`;
    const g = grid.canvas.getContext("2d");
    g.setTransform(dots, 0, 0, dots, 0, 0);
    Object.assign(grid, {g, size, layer});
    for (let i = 0; i < n; i++)
        mark(grid, i, colors, false);
    if (shown.layer === l && shown.expert < n)
        mark(grid, shown.expert, colors, true);
    const served = layer.replicas.filter(r => r > 0).length;
    grid.title.textContent = `${layer.name} · ${layer.grid.join("×")} · ${count(served)} of ${count(n)}`;
    grid.canvas.setAttribute("aria-label", `Experts of ${layer.name}: ${count(served)} of ${count(n)} served`);
}

function point(l, i)
{
    const was = shown, colors = colorsNow();
    if (was.layer === l && was.expert === i)
        return;
    shown = {layer: l, expert: i};
    if (was.layer >= 0 && was.layer < grids.length && was.expert < grids[was.layer].count)
        mark(grids[was.layer], was.expert, colors, false);
    mark(grids[l], i, colors, true);
    tellExpert();
}

/* Says who hosts the square that is pointed at. */
function tellExpert()
{
    if (shown.layer < 0 || shown.layer >= grids.length)
        return;
    const {layer} = grids[shown.layer], peers = list(now.peers, PEERS), i = shown.expert;
    if (i >= layer.replicas.length)
        return;
    const n = num(layer.replicas[i]) ?? 0;
    const names = list(layer.hosts[i], 8).map(p => object(peers[num(p)])).map(p => text(p.name, 32) || text(p.id, 16)).filter(s => s);
    say("cover-hint", `${uid(layer, i)}: ${n === 0 ? "no host" : many(n, "host") + ": " + names.join(", ") + (n > names.length ? ", …" : "")}`);
}

function addGrid(l)
{
    const box = make("div"), title = make("h3"), canvas = make("canvas");
    const grid = {canvas, title, wide: 1, pitch: 1, count: 0};
    canvas.tabIndex = 0;
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-describedby", "cover-hint");
    const at = event => {
        const box = canvas.getBoundingClientRect();
        const x = Math.floor((event.clientX - box.left) / grid.pitch), y = Math.floor((event.clientY - box.top) / grid.pitch);
        const i = y * grid.wide + x;
        if (x >= 0 && x < grid.wide && i >= 0 && i < grid.count)
            point(l, i);
    };
    canvas.addEventListener("pointermove", at);
    canvas.addEventListener("pointerdown", at);
    canvas.addEventListener("focus", () => { if (shown.layer !== l && grid.count > 0) point(l, 0); });
    canvas.addEventListener("keydown", event => {
        const by = {ArrowLeft: -1, ArrowRight: 1, ArrowUp: -grid.wide, ArrowDown: grid.wide}[event.key];
        if (by === undefined || grid.count === 0)
            return;
        event.preventDefault();
        const from = shown.layer === l ? shown.expert : 0;
        point(l, from + by >= 0 && from + by < grid.count ? from + by : from);
    });
    box.append(title, canvas);
    $("layers").append(box);
    grids.push(grid);
}

function drawCover(run)
{
    const n = list(run.layers, LAYERS).length, colors = colorsNow();
    while (grids.length > n)
        grids.pop().canvas.parentNode.remove();
    while (grids.length < n)
        addGrid(grids.length);
    for (let l = 0; l < n; l++)
        paint(run, l, colors);
    say("cover-sum", num(run.places) === null || run.places === 0 ? "" :
        `${count(run.served)} of ${count(run.places)} served (${part(run.served / run.places, 0)})`);
    tellExpert();
}

function drawLegend()
{
    const colors = colorsNow(), items = [];
    for (const [n, what] of [[0, "no host"], [1, "one host"], [2, "two"], [3, "three or more"]]) {
        const li = make("li"), canvas = make("canvas");
        canvas.width = canvas.height = 28;
        canvas.setAttribute("aria-hidden", "true");
        square(canvas.getContext("2d"), n, 0, 0, 28, colors);
        li.append(canvas, what);
        items.push(li);
    }
    $("legend").replaceChildren(...items);
}

/* ---- peers and events ---------------------------------------------------------------------- */

function averageText(p)
{
    const a = object(p.average);
    if (num(a.members) === null)
        return p.role === "trainer" ? "none yet" : "";
    return text(a.reason, 24) === "OK" ? `with ${many(a.members - 1, "other")}` : text(a.reason, 24);
}

function peerCells(p)
{
    const speed = p.role === "trainer" ? `${rate(p.samples_per_s)} samples/s` : p.role === "host" && num(p.rows_per_s) !== null ? `${rate(p.rows_per_s)} rows/s` : "";
    const state = text(p.state, 16);
    const does = state === "silent" ? `silent for ${span(p.seen_s)}` : state === "unreachable" ? "can't be reached" :
        num(p.unsaved_s) > 0 ? `can't save for ${span(p.unsaved_s)}` : text(p.does, 16) === "training" ? "" : text(p.does, 16);
    return [text(p.name, 32) || text(p.id, 16), text(p.role, 16) + (does ? `: ${does}` : ""), speed,
        num(p.step) === null ? "" : count(p.step), p.role === "host" ? count(p.experts) : "", averageText(p), text(p.version, 31)];
}

/* Rows are changed in place, so that the table keeps its place while somebody reads it. */
function drawPeers(run)
{
    const body = $("peers"), peers = list(run.peers, PEERS);
    while (body.rows.length > peers.length)
        body.lastChild.remove();
    while (body.rows.length < peers.length) {
        const row = make("tr");
        for (let c = 0; c < 7; c++)
            row.append(make("td", "", c >= 2 && c <= 4 ? "num" : ""));
        body.append(row);
    }
    peers.forEach((p, i) => peerCells(object(p)).forEach((cell, c) => {
        const td = body.rows[i].cells[c];
        if (td.textContent !== cell)
            td.textContent = cell;
    }));
}

const tone = {killed: "bad", behind: "bad", fork: "bad", heal: "good", replaced: "good", joined: "good"};
function drawEvents(run)
{
    const events = list(run.events, EVENTS).reverse().map(object);
    $("events").replaceChildren(...events.map(e => {
        const li = make("li"), time = make("time", when(e.t, true, true));
        li.append(time, make("span", text(e.text, TEXT), tone[e.kind] ?? ""));
        return li;
    }));
    if (events.length === 0)
        $("events").append(make("li", "Nothing has happened yet."));
}

/* The i-th square of the drawings, whose only address is the monitor's. The step makes it new. */
function drawingOf(item, i, step)
{
    const img = make("img", undefined, `drawing d${i}`);
    img.src = `drawings.png?${step}`;
    img.alt = `drawing: ${text(item.prompt, TEXT)}`;
    return img;
}

function drawGallery(run)
{
    const gallery = object(run.gallery), step = num(gallery.step) ?? 0;
    const items = list(gallery.items, 8).map(object), drawn = gallery.picture === "drawings.png";
    const key = JSON.stringify(gallery);
    if ($("gallery").dataset.key === key)
        return;
    $("gallery").dataset.key = key;
    $("gallery-part").hidden = items.length === 0;
    say("gallery-step", `at step ${count(step)}`);
    $("gallery").classList.toggle("texts", !drawn);
    $("gallery").replaceChildren(...items.map((item, i) => {
        const li = make("li");
        li.append(make("span", text(item.prompt, TEXT)),
            drawn ? drawingOf(item, i, step) : make("span", text(item.text, 1024)));
        return li;
    }));
}

/* ---- keeping it new ------------------------------------------------------------------------ */

let now = null; /* the newest run.json or now.json, with the tests of the former */
let readAt = 0; /* when it was, in ms */

/* Draws in turns, so that a page that is scrolled or pointed at meanwhile answers. */
async function draw()
{
    $("live").ariaBusy = "true";
    for (const part of [drawHead, drawJoin, drawLoss, drawPeople, drawRate, drawCover, drawGallery, drawEvents, drawPeers]) {
        part(now);
        await new Promise(done => setTimeout(done));
    }
    $("live").ariaBusy = "false";
}

/* Shows a whole run.json. */
function show(run)
{
    const first = now === null;
    now = object(run);
    takeHistory(now);
    if (first) {
        $("numbers")?.remove();
        $("live").hidden = false;
        drawLegend();
    }
    return draw();
}

function link(content, lost)
{
    say("link", content);
    $("link").classList.toggle("lost", lost);
}

/* What the monitor's last answer says about itself. */
function linkNow()
{
    const age = num(now.now_at_s) - num(now.asked_at_s), period = num(now.period_s) ?? 10;
    if (num(now.asked_at_s) === null)
        link("the monitor has not reached the run yet", false);
    else if (age > 3 * period)
        link(`the monitor lost the run ${span(age)} ago`, true);
    else
        link(`new every ${span(period)}, last at ${when(now.now_at_s, false, true)}`, false);
}

async function fetchJson(path)
{
    const answer = await fetch(path, {cache: "no-store"});
    if (!answer.ok)
        throw new Error(`${path}: ${answer.status}`);
    readAt = performance.now();
    return object(await answer.json());
}

async function refresh()
{
    try {
        const run = await fetchJson("run.json");
        await show(run);
        linkNow();
    } catch (error) {
        link(`no answer from the monitor (${error.message}); trying again`, true);
    }
}

/* An event says that there is something new; a jump in seq, that some were missed or that the
 * monitor began anew; the same seq again, that it waits for the run. */
async function onEvent(data)
{
    const ahead = now === null ? NaN : (num(data.seq) ?? NaN) - num(now.seq);
    if (ahead !== 0 && ahead !== 1)
        return refresh();
    if (ahead === 0 && performance.now() - readAt < 500 * (num(now.period_s) ?? 10))
        return linkNow(); // it was just read
    try {
        const {tests, test} = now, next = await fetchJson("now.json");
        if (object(next.test).t !== object(test).t)
            return refresh(); // for the curve of tests
        now = {tests, ...next};
        if (ahead === 1)
            takePoint(data.point);
        await draw();
        linkNow();
    } catch {
        await refresh();
    }
}

function listen()
{
    const stream = new EventSource("events");
    let busy = Promise.resolve();
    stream.addEventListener("now", event => {
        busy = busy.then(() => onEvent(object(JSON.parse(event.data)))).catch(refresh);
    });
    stream.addEventListener("error", () => {
        link("no connection to the monitor; trying again", true);
        if (stream.readyState === EventSource.CLOSED) // refused: only what breaks is dialled again
            setTimeout(listen, 10000);
    });
}

for (const radio of document.getElementsByName("against")) {
    radio.addEventListener("change", () => {
        against = radio.value;
        if (now !== null)
            drawLoss(now);
    });
}
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    drawLegend();
    if (now !== null)
        draw();
});
Chart.defaults.font.family = getComputedStyle(document.body).fontFamily;
let width = 0;
new ResizeObserver(() => {
    if (now !== null && width !== $("layers").clientWidth)
        drawCover(now);
    width = $("layers").clientWidth;
}).observe($("layers"));

const live = $("numbers")?.dataset.live !== "no";
refresh();
if (live)
    listen();
else
    setInterval(refresh, 30000);
})();
