-- The sliding window: one, or many that are decided each for itself. Nearly every call on it is one
-- of these, so the code is inline. decide.lua handles keys that are not plain, in the same call or
-- in another.
--
-- KEYS and ARGV are as in script.lua, but
-- ARGV[3]  take: 0 only reads
-- ARGV[4]  milliseconds of a period
-- ARGV[5]  sliding
-- ARGV[6]  limit: tokens that may be taken in a period
--
-- Reply: five integers for each window, in one list: see decide.lua. If all charges were made, the
-- third may be 0 though one more does not fit.
--
-- State: see kind/sliding.lua. A missing key is an untouched window, so expiry loses nothing.

local each, alone = ARGV[1] == 'each', ARGV[1] == 'take' and #KEYS == 1
if each or alone then
  local n, period, limit = ARGV[2] + 0, ARGV[4] + 0, ARGV[6] + 0
  local once = each and ARGV[3] == '1'
  local reply = {}
  for i = 1, #KEYS do
    local key, charges = KEYS[i], (each and not once and ARGV[6 + i] or ARGV[3]) + 0
    local used, left, now, base, total, expired = 0, 0, 0, 0, 0, 0
    local list = try('LRANGE', key, '0', '4')
    local oldest, first -- time and tokens of the oldest entry
    if list[1] then
      left = call('PTTL', key)
      if left > 0 then
        local stop
        -- nil if blocked, or not a window
        base, total, stop = match(list[1], '^(%d+) (%d+) (%d+)$')
        oldest, first = tonumber(list[2]), tonumber(list[3])
        if base and first then
          left = min(left, period)
          now = stop - left
          if oldest + period <= now then
            expired, base = 1, first
            oldest, first = tonumber(list[4]), tonumber(list[5])
          end
        end
        if base and first and oldest + period <= now then -- more than one entry has expired
          local from, to = 3, floor((call('LLEN', key) - 1) / 2)
          while from < to do
            local middle = floor((from + to) / 2)
            if (tonumber(call('LINDEX', key, 2 * middle - 1)) or 0) + period > now then
              to = middle
            else
              from = middle + 1
            end
          end
          expired, list = from - 1, call('LRANGE', key, 2 * from - 2, 2 * from)
          base, oldest, first = tonumber(list[1]), tonumber(list[2]), tonumber(list[3])
        end
        if base and first then
          used, first = (total - base) % wrap, (first - base) % wrap
        else
          used = nil
        end
      elseif left == -1 then
        used = nil
      else
        left = 0
      end
    elseif list.err then
      used = nil
    end

    local soon, wait, charged = 0, 0, 0
    if used then
      charged = max(0, min(charges, floor((limit - used) / n)))
      local tokens = charged * n
      if not oldest and tokens > 0 then oldest, first = now, tokens end
      if oldest then soon = oldest + period - now end
      local short = used + tokens + n - limit
      if short > 0 and (charges == 0 or charged < charges) then
        if n <= limit then wait = soon end
        if oldest and short > first then used = nil end -- more than the oldest tokens must expire
      end
      if used and charged > 0 then
        total = (total + tokens) % wrap
        local text = format('%d', total)
        local header, done = format('%d %s %d', base, text, now + period), nil
        if left == 0 then
          if list[1] then call('UNLINK', key) end -- its expiry is due
          done = try('RPUSH', key, header, '0', text)
          if type(done) == 'number' then
            done = try('PEXPIRE', key, ARGV[4])
            if type(done) ~= 'number' then call('DEL', key) end
          end
        else
          done = try('LSET', key, expired == 0 and '0' or 2 * expired, header)
          if type(done) == 'number' or done.ok then
            if expired > 0 then call('LTRIM', key, 2 * expired, '-1') end
            if left == period then -- in the same millisecond as the newest entry
              call('LSET', key, '-1', text)
            else
              call('RPUSH', key, format('%d', now), text)
            end
            call('PEXPIRE', key, ARGV[4])
          end
        end
        if type(done) == 'table' and done.err then used = nil end
      end
    end
    if used and alone then return {used, soon, wait, left, now}, charged end
    if each then
      local j = 5 * i
      reply[j - 4], reply[j - 3], reply[j - 2] = used or -1, soon, wait
      reply[j - 1], reply[j] = left, now
    end
  end
  if each then return reply end
end
