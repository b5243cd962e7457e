-- A decision on windows: all of them charged or none. It follows fixed_window.lua or sliding_window.lua, which keep
-- the state, and decide on windows one by one.
--
-- KEYS[i]         window i, i = 1 … k; all in one hash slot
-- ARGV[1]         what to do: take, give, block, reset; or each, to take from each window for itself
-- ARGV[2]         take and each: tokens of a charge; give: tokens to give back; block: milliseconds
-- ARGV[3]         take: charges, of which as many are made as fit; 0 looks
-- ARGV[2i + 2]    period of window i in milliseconds; with each that of all windows, as ARGV[4] only
-- ARGV[2i + 3]    its limit: tokens that may be taken in a period; with each that of all, as ARGV[5] only
-- ARGV[5 + i]     each: charges of window i; no key comes twice
--
-- Reply: four integers for each window, in one list
--   1. tokens taken before this call, and the limit if that is more where the window is blocked. With each, -1 where
--      nothing was done: that window is to be asked for alone, and tells why
--   2. milliseconds until it has more to give than after this call, 0 if it has all
--   3. milliseconds until one more charge fits, 0 if it does
--   4. milliseconds until nothing is left of the window as it was found, 0 if there was none
--
-- Portable: integers below 2^53 only, no TIME, every key in KEYS.

local what, n, charges = ARGV[1], ARGV[2] + 0, ARGV[3] + 0
local windows, reply = {}, {}
for i, key in ipairs(KEYS) do
  local w = {key = key, period = ARGV[2 * i + 2] + 0, limit = ARGV[2 * i + 3] + 0}
  read(w)
  local used = w.block > 0 and max(w.used, w.limit) or w.used
  charges = max(0, min(charges, floor((w.limit - used) / n)))
  windows[i] = w
  reply[4 * i - 3], reply[4 * i - 2], reply[4 * i - 1], reply[4 * i] = used, 0, 0, max(w.left, w.block)
end

for i, w in ipairs(windows) do
  if what == 'give' then
    give(w, n)
  elseif what == 'block' then
    block(w, n)
  elseif what == 'reset' then
    call('DEL', w.key)
  else
    if charges > 0 then take(w, charges * n) end
    local soon, wait, short = w.block, w.block, w.used + n - w.limit
    if w.used > 0 then soon = max(soon, leaves(w, max(1, w.used - w.limit + 1))) end
    if short > 0 and n <= w.limit then wait = max(wait, leaves(w, short)) end
    reply[4 * i - 2], reply[4 * i - 1] = soon, wait
  end
  expire(w)
end
return reply
