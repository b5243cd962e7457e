-- A decision on windows: all of them charged or none. It follows fixed_window.lua or sliding_window.lua, which keep
-- the state, and decide on windows one by one.
--
-- KEYS[i]         window i, i = 1 … k; all in one hash slot
-- ARGV[1]         the verb: take; give, to give back what was taken last; return, to give back what one call has taken;
--                 block; reset; or each, to take from each window for itself
-- ARGV[2]         take and each: tokens of a charge; give and return: tokens to give back; block: milliseconds
-- ARGV[3]         take: charges, of which as many are made as fit, 0 looks; each: 1 if each window is charged once
-- ARGV[3i + 1]    period of window i in milliseconds
-- ARGV[3i + 2]    1, what a token of it weighs
-- ARGV[3i + 3]    its limit: tokens that may be taken in a period
--                 With each, ARGV[4], ARGV[5] and ARGV[6] are those of every window, and no key comes twice
-- ARGV[3k + 3 + i]  return: the mark in the reply to that call, at most a period ago; or -1, and nothing is given back. Nor
--                 is what the window no longer has of the tokens with that mark
-- ARGV[6 + i]     each: charges of window i; absent if ARGV[3] is 1
--
-- Reply: five integers for each window, in one list
--   1. tokens taken before this call, and the limit if that is more where the window is blocked. With each, -1 where
--      nothing was done: that window is to be asked for alone, and tells why
--   2. milliseconds until it has more to give than after this call, 0 if it has all
--   3. milliseconds until one more charge fits, 0 if it does
--   4. milliseconds until nothing is left of the window as it was found, 0 if there was none
--   5. the mark: by which return finds the tokens that this call has taken
--
-- Portable: integers below 2^53 only, no TIME, every key in KEYS.

local verb, n, charges = ARGV[1], ARGV[2] + 0, ARGV[3] + 0
local windows, reply = {}, {}
for i, key in ipairs(KEYS) do
  local w = {key = key, period = ARGV[3 * i + 1] + 0, limit = ARGV[3 * i + 3] + 0}
  read(w)
  local used = w.block > 0 and max(w.used, w.limit) or w.used
  charges = max(0, min(charges, floor((w.limit - used) / n)))
  windows[i] = w
  reply[5 * i - 4], reply[5 * i - 3], reply[5 * i - 2], reply[5 * i - 1] = used, 0, 0, max(w.left, w.block)
end

for i, w in ipairs(windows) do
  if verb == 'give' then
    give(w, n)
  elseif verb == 'return' then
    giveMarked(w, n, ARGV[3 * #KEYS + 3 + i] + 0)
  elseif verb == 'block' then
    block(w, n)
  elseif verb == 'reset' then
    call('DEL', w.key)
  else
    if charges > 0 then take(w, charges * n) end
    local soon, wait, short = w.block, w.block, w.used + n - w.limit
    if w.used > 0 then soon = max(soon, leaves(w, max(1, w.used - w.limit + 1))) end
    if short > 0 and n <= w.limit then wait = max(wait, leaves(w, short)) end
    reply[5 * i - 3], reply[5 * i - 2] = soon, wait
  end
  reply[5 * i] = mark(w)
  expire(w)
end
return reply
