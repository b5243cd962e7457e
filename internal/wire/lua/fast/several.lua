-- Token buckets and calendar periods that are charged together, all or none. Nearly every call on
-- several limits is one of these, so the code is inline. It also decides on a ban and slots that
-- come with them: in such scripts it is a function, which decide calls for the limits alone. Without
-- limits, it decides inline on a ban and slots. It puts the slots' values that it has read into the list
-- found.
-- decide.lua and guards.lua handle what is not plain, such as a block, and document KEYS and ARGV.
--
-- Reply: a list with one integer for each limit: the level of a token bucket, or the tokens taken
-- of a calendar period, whose other numbers the caller computes. Then the reply of guards.lua for a
-- ban and slots.
--
-- State: see script.lua, kind/fixed.lua, guards.lua and slots.lua, which say why expiry loses
-- nothing.

if (guarded or #KEYS > 1) and ARGV[1] == 'take' then
  local n, charges, plain = ARGV[2] + 0, ARGV[3] + 0, true
  local values, levels, taken = {0, 0, 0}, {0, 0, 0}, {0, 0, 0} -- taken: units of one charge
  local k, at, ban, slots, used, with = #KEYS, nil, nil, 0, guarded and {0, 0, 0}, guarded and {}
  if guarded then
    k = ARGV[#ARGV] + 0
    at = (n > 0 and 3 or 4) * k + 3
    plain = charges == 1
    if ARGV[at + 1] ~= 'slots' then
      plain, ban, at = plain and not try('GET', KEYS[k + 1]), true, at + 5
    end
    slots = #KEYS - k - (ban and 1 or 0)
    local last = #KEYS
    if slots > 0 and ARGV[at + 3] ~= '0' then -- turns, if nobody waits
      slots = slots / 2
      last = last - slots
      for j = 1, slots do plain = plain and not try('GET', KEYS[last + j]) end
    end
    for j = 1, plain and slots or 0 do -- slots, if no process has ended
      local of, key = at + 4 * j + 1, KEYS[last - slots + j]
      local ended, held = ARGV[of], ARGV[of + 1] + 0
      local entries = try('HMGET', key, 'all', ARGV[at + 2])
      found[j] = entries
      local head, own, others = entries[1], entries[2], 0
      if head then
        local ends, first, all, processes = match(head, '^(%d+) (%d+) (%d+) (%d+)$')
        plain = ends ~= nil
        if plain and own then
          local known, kept, slots, later = match(own, '^(%d+) (%d+) (%d+) %d+ (%d*),?$')
          plain = known and ended - known >= 0
          if plain and ended == known then -- the attempt may be repeated
            plain = kept - held >= 0 and (later == '' or later .. ',' == ARGV[of + 2])
          elseif plain then -- the later attempt must have ended since
            plain = later == '' or ended - later >= 0
          end
          others = plain and all - slots
        elseif plain then
          others, processes = all + 0, processes + 1
        end
        if plain and processes + 0 > 1 then
          local ttl = call('PTTL', key)
          local now = ends - ttl
          plain = ttl > 0 and ttl <= life + 0 and first - now > 0
          with[j] = {now + life, first, processes, ttl}
        end
      elseif entries.err or own or call('PTTL', key) ~= -2 then
        plain = false
      end
      if not plain then break end
      used[j] = held + others
      if used[j] >= ARGV[of - 1] + 0 then
        plain = false
        break
      end
    end
  end
  for i = 1, plain and k or 0 do
    local at = 3 * i
    local drain, calendar, level = ARGV[at + 1], ARGV[at + 2] == 'calendar', 0
    local charge = n > 0 and n or ARGV[3 * k + 3 + i] + 0
    local value = try('GET', KEYS[i])
    if not calendar then charge = charge * ARGV[at + 2] end
    if value then
      level = tonumber(value)
      if not level or level < 0 then
        plain = false
        break
      end
      if not calendar then
        local ttl = call('PTTL', KEYS[i])
        if ttl <= 0 then
          plain = false
          break
        end
        drain = drain + 0
        if level < drain then -- else it is from another limit
          level = ttl * drain - level
        else
          level = ttl * drain
        end
      end
      if level > exact then
        plain = false
        break
      end
    end
    local room = ARGV[at + 3] - level
    if charges * charge > room then charges = floor(room / charge) end
    values[i], levels[i], taken[i] = value, level, charge
  end

  if plain and (charges > 0 or not guarded) then
    if charges > 0 then
      local charged = false -- first by a command that fails where memory is full
      for i = 1, k do
        local at = 3 * i
        if ARGV[at + 2] == 'calendar' then
          if values[i] then
            call('INCRBY', KEYS[i], format('%d', charges * taken[i]))
          else
            call('SET', KEYS[i], format('%d', charges * taken[i]), 'PX', format('%d', ARGV[at + 1] + grace))
          end
          charged = true
        end
      end
      for i = 1, k do
        local at = 3 * i
        if ARGV[at + 2] ~= 'calendar' then
          local drain, after = ARGV[at + 1] + 0, levels[i] + charges * taken[i]
          local ttl = ceil(after / drain)
          local rest = ttl * drain - after
          if charged and rest == 0 and values[i] == '0' then
            call('PEXPIRE', KEYS[i], format('%d', ttl))
          else
            call('SET', KEYS[i], format('%d', rest), 'PX', format('%d', ttl))
            charged = true
          end
        end
      end
    end
    if k < 3 then levels[3] = nil end
    if k < 2 then levels[2] = nil end
    if k < 1 then levels[1] = nil end
    if ban then levels[k + 1], levels[k + 2] = 0, 0 end
    for j = 1, slots do
      local of = at + 4 * j + 1
      local key, many, held = KEYS[k + (ban and 1 or 0) + j], with[j], ARGV[of + 1] + 1
      local head, own = '%d %d %d %d', '%s %s %d %d %s'
      if many and call('HSET', key, 'all', format(head, many[1], many[2], used[j] + 1, many[3]),
        ARGV[at + 2], format(own, ARGV[of], ARGV[of + 1], held, many[1], ARGV[of + 2])) < 2 then
        call('PEXPIRE', key, expiry(key, many[4], life))
      else -- the process is alone, or the key has expired since it was read
        call('HSET', key, 'all', format(head, life, life, held, 1),
          ARGV[at + 2], format(own, ARGV[of], ARGV[of + 1], held, life, ARGV[of + 2]))
        call('PEXPIRE', key, life)
      end
      levels[#levels + 1] = used[j] + (used[j] + 1 - held) * 2147483648 -- and what others hold
    end
    return levels, charges
  end
end
