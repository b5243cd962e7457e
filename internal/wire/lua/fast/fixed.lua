-- The fixed window and the calendar period: one, or many that are decided each for itself. Nearly
-- every call on them is one of these, so the code is inline. decide.lua handles keys that are not
-- plain, in the same call or in another.
--
-- KEYS and ARGV are as in script.lua, but
-- ARGV[3]  take: 0 only reads
-- ARGV[4]  milliseconds of a period; or milliseconds until the calendar period ends
-- ARGV[5]  fixed or calendar
-- ARGV[6]  limit: tokens that may be taken in a period
--
-- Reply: five integers for each window, in one list: see decide.lua
--
-- State: see kind/fixed.lua. A missing key is an untouched window, so expiry loses nothing.

local each, alone = ARGV[1] == 'each', ARGV[1] == 'take' and #KEYS == 1
if each or alone then
  local n, period, limit = ARGV[2] + 0, ARGV[4] + 0, ARGV[6] + 0
  local once, calendar = each and ARGV[3] == '1', ARGV[5] == 'calendar'
  local lives = format('%d', calendar and period + grace or period)
  local reply = {}
  for i = 1, #KEYS do
    local key, charges = KEYS[i], (each and not once and ARGV[6 + i] or ARGV[3]) + 0
    local used, left, soon, wait, mark, charged = 0, 0, 0, 0, 0, 0
    local value = try('GET', key)
    if value then
      left = call('PTTL', key)
      if left > 0 then
        used = tonumber(value) -- nil if blocked, or not a window
      elseif left == -1 then
        used = nil
      else
        left = 0
      end
    end
    if used then
      charged = max(0, min(charges, floor((limit - used) / n)))
      local after = used + charged * n
      mark = left
      if charged > 0 then
        local done
        if left > 0 then
          done = try('INCRBY', key, format('%d', charged * n))
        else
          mark = lives + 0
          done = try('SET', key, format('%d', after), 'PX', lives)
        end
        if type(done) == 'table' and done.err then used = nil end
      end
      soon = mark
      if calendar then soon, left = min(mark, period), period end
      if after + n > limit and n <= limit then wait = soon end
    end
    if used and alone then return {used, soon, wait, left, mark}, charged end
    if each then
      local j = 5 * i
      reply[j - 4], reply[j - 3], reply[j - 2] = used or -1, soon, wait
      reply[j - 1], reply[j] = left, mark
    end
  end
  if each then return reply end
end
