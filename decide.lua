-- A decision on buckets and windows: all of them charged or none. It follows script.lua, fixed_window.lua, sliding_window.lua
-- or mixed.lua, which keep the state, and decide on one bucket or window each.
--
-- KEYS[i]         bucket or window i, i = 1 … k; all in one hash slot
-- ARGV[1]         the verb: take; charge, into debt if it must, up to a burst of it; give, to give back what was taken last;
--                 return, to give back what one call has taken; block; reset; or each, to take from each for itself
-- ARGV[2]         take and each: tokens of a charge; charge: tokens; give and return: tokens to give back; block: milliseconds
-- ARGV[3]         take: charges, of which as many are made as fit, 0 looks; each: 1 if each is charged once
-- ARGV[3i + 1]    drain of bucket i: units that flow back per millisecond; or period of window i in milliseconds; or
--                 milliseconds until calendar period i ends
-- ARGV[3i + 2]    cost of bucket i: units that one token weighs; 1 of a window, 0 of a calendar period
-- ARGV[3i + 3]    capacity of bucket i: units it holds; or limit of window i: tokens that may be taken in a period
--                 With each, ARGV[4], ARGV[5] and ARGV[6] are those of every key, and no key comes twice
-- ARGV[3k + 3 + i]  return, but of token buckets alone: the mark in the reply to that call, at most a period ago; or -1, and
--                 nothing is given back. Nor is what the window no longer has of the tokens with that mark
-- ARGV[6 + i]     each: charges of key i; absent if ARGV[3] is 1
--
-- Reply: of token buckets alone, the level of each (see script.lua). Else five integers for each key, in one list
--   1. tokens taken before this call, and the limit if that is more where the window is blocked; or the level. With each,
--      -1 if nothing was done; a call for that key alone tells why
--   2. milliseconds until it has more to give than after this call, 0 if it has all
--   3. milliseconds until one more charge fits, 0 if it does
--   4. milliseconds until nothing is left of the window as it was found, 0 if there was none; or until the calendar period
--      ends, and a block of it if there is one
--   5. the mark: by which return finds the tokens that this call has taken
--   Of a token bucket, the level tells the others, which are 0.
--
-- Portable: integers below 2^53 only, no TIME, every key in KEYS.

local verb, n, charges = ARGV[1], ARGV[2] + 0, ARGV[3] + 0
local all, reply = {}, {}
for i, key in ipairs(KEYS) do
  local cost = ARGV[3 * i + 2] + 0
  local w = {
    key = key, period = ARGV[3 * i + 1] + 0, cost = max(1, cost), calendar = cost == 0, limit = ARGV[3 * i + 3] + 0
  }
  read(w)
  local used = found(w)
  charges = max(0, min(charges, floor((w.limit - used) / (n * w.cost))))
  all[i], reply[size * (i - 1) + 1] = w, used
  if size > 1 then
    local left = w.left
    if w.calendar then left = w.block == 0 and w.period or min(left, w.period) end
    reply[5 * i - 3], reply[5 * i - 2], reply[5 * i - 1] = 0, 0, max(left, w.block)
  end
end

for i, w in ipairs(all) do
  if verb == 'charge' then
    local tokens = min(n, floor((most(w) - w.used) / w.cost))
    if tokens > 0 then take(w, tokens) end
  elseif verb == 'give' then
    give(w, n)
  elseif verb == 'return' then
    giveMarked(w, n, (ARGV[3 * #KEYS + 3 + i] or 0) + 0)
  elseif verb == 'block' then
    block(w, n)
  elseif verb == 'reset' then
    call('DEL', w.key)
  else
    if charges > 0 then take(w, charges * n) end
    if size > 1 then
      local soon, wait, short = w.block, w.block, w.used + n - w.limit
      if w.used > 0 then soon = max(soon, leaves(w, max(1, w.used - w.limit + 1))) end
      if short > 0 and n <= w.limit then wait = max(wait, leaves(w, short)) end
      reply[5 * i - 3], reply[5 * i - 2] = soon, wait
    end
  end
  if size > 1 then
    reply[5 * i] = mark(w)
    expire(w)
  end
end
if size == 1 and #KEYS == 1 then return reply[1] end
return reply
