const FATES = {
  kept: "kept", blank: "blank, no word", repeat: "repeat, merged", skipped: "not on the path",
}
const MOST_PATHS = 20  // sentences; with more, the page would be slow

function box({subword, probability, fate}, language) {
  const word = made("b", fate === "blank" ? "blank" : subword.replace(/^\u2581(?=.)/, ""))
  if (fate !== "blank") word.lang = language
  const percent = (Math.round(100 * probability) || "<1") + "%"
  const item = made("li", [word, made("small", percent), made("span", ", " + fate, "aloud")], fate)
  item.style.setProperty("--probability", probability)
  return item
}

function draw(sentences, language) {
  const known = sentences.map(({source, translations: [best]}) => ({source, ...best}))
    .filter(best => best.positions)
  const every = known.flatMap(best => best.positions)
  const number = fate => every.filter(position => position.fate === fate).length
  find("told").textContent = every.length
    ? "Each box is a position of the decoder. Their words were predicted side by side, not one after "
      + "the other; those that are kept are the translation. The fuller a box, the surer the model."
    : sentences.length ? "Nothing to draw: the decoder of this model keeps no record of its positions."
    : "Type a text to see what each position of the decoder predicts."
  find("legend").replaceChildren(...Object.keys(FATES).filter(number)
    .map(fate => made("li", `${FATES[fate]}: ${number(fate)} of ${every.length}`, fate)))
  find("paths").replaceChildren(...known.slice(0, MOST_PATHS).map(best => {
    const result = made("p", best.text)
    result.lang = language
    const list = made("ol", best.positions.map(position => box(position, language)), "path")
    list.role = "list"  // which it would not be for all readers, without its numbers
    return made("section", [made("p", best.source, "soft"), list, result])
  }))
  if (known.length > MOST_PATHS)
    find("paths").append(made("p", `The first ${MOST_PATHS} of ${known.length} sentences.`, "soft"))
}
