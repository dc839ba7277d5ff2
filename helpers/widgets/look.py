"""The look of all interactive pictures: paper, controls, headlines. Colours and fonts come from `theme`."""

from helpers import theme
from helpers.widgets.svg import FONTS, HEADLINE_SIZE, SMALL, TEXT

ACCENT = theme.MAY_ATTEND
WIDTH = 860  # px: drawings are made for this width; narrower windows scale them down

# The paper stays white in JupyterLab's dark theme, so everything on it is given its colours here.
# A system's forced colours would take the meaning from drawings, and the mark from the chosen button.
# Without `:has` no choice could do anything: an old browser keeps the image.
STYLE = f"""@supports selector(:has(a)){{
.touch-still{{display:none!important}}
.touch-live{{display:block!important;box-sizing:border-box;max-width:{WIDTH + 34}px;margin:4px 0;padding:14px 16px 10px;
background:{theme.PAPER};color:{theme.INK};color-scheme:light;forced-color-adjust:none;
border:1px solid {theme.LINE};border-radius:6px;font:{TEXT}px/1.4 {FONTS}}}
.touch-choice{{display:flex;align-items:center;gap:6px 12px;margin:0 0 10px}}
.touch-name{{flex:none;width:140px;font-weight:bold}}
.touch-options{{display:flex;flex:1;flex-wrap:wrap;gap:6px;min-width:0}}
.touch-live label{{position:relative;display:block;margin:0;color:inherit;cursor:pointer}}
.touch-live input{{margin:0;accent-color:{ACCENT};cursor:pointer}}
.touch-live input:focus-visible{{outline:3px solid {theme.INK};outline-offset:2px}}
.touch-live input~*{{position:relative}}
.touch-live input:checked~span{{font-weight:bold}}
.touch-buttons input,.oplay input,.touch-grid input{{position:absolute;inset:0;width:100%;height:100%;appearance:none;
border:1px solid {theme.FAINT};border-radius:4px}}
.touch-buttons label,.oplay{{padding:3px 10px}}
.touch-live .oplay{{flex:none}}
.touch-buttons input:checked,.oplay input:checked{{background:{ACCENT};border-color:{ACCENT}}}
.touch-live :is(.touch-buttons,.oplay) input:checked~span{{color:{theme.label_colour(ACCENT)};font-weight:normal}}
.touch-slider .touch-options{{position:relative;flex-wrap:nowrap;justify-content:space-between;gap:0;max-width:560px}}
.touch-slider .touch-options::before{{content:"";position:absolute;top:9px;left:22px;right:22px;height:3px;
background:{theme.LINE}}}
.touch-slider .touch-options label{{width:44px;padding-top:2px;text-align:center;font-size:{SMALL}px;line-height:1.3}}
.touch-slider .touch-options input{{position:relative;display:block;width:17px;height:17px;margin:0 auto 2px}}
.touch-options label::after{{content:"";visibility:hidden;position:absolute;top:6px;left:calc(50% - 4.5px);width:9px;
height:9px;border-radius:50%;background:{theme.INK}}}
.touch-grid{{align-items:flex-start;margin-bottom:15px}}
.touch-grid .touch-options{{max-height:270px;overflow-y:auto;padding:5px;margin:-5px}}
.touch-grid label{{display:flex;flex-direction:column;align-items:center;padding:4px;font-size:{SMALL}px}}
.touch-live .touch-grid input:checked~span{{font-weight:normal}}
.touch-grid input{{border:2px solid transparent}}
.touch-grid input:checked{{border-color:{theme.INK}}}
.touch-grid svg,.touch-grid img{{display:block}}
.touch-headlines p{{margin:6px 0 4px;font-size:{HEADLINE_SIZE}px;font-weight:bold;line-height:1.35;color:inherit}}
.touch-headlines,.touch-drawings{{display:grid}}
.touch-when{{display:none;grid-area:1/1;min-width:0}}
.touch-drawings svg{{display:block;max-width:100%;height:auto;fill:{theme.INK}}}
}}"""
